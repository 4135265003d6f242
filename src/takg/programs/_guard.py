"""Run a program in this process group, and kill the whole group when it ends or when whoever asked for it is gone.

A script, started by `_train.py` as the leader of a new session, in an interpreter with nothing but the built-in
modules. Its arguments: the descriptor to write the outcome to, the one whose end of file means that the worker is
gone, and the command.
"""

import _thread
import os
import signal
import sys


def main() -> None:
    outcome, watch, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for descriptor in (outcome, watch):
        os.set_inheritable(descriptor, False)
    _thread.start_new_thread(_kill_when_closed, (watch,))
    # Python ignores two signals, and takg's workers one more; the program gets what a shell would have given it.
    usual = [signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ]
    try:
        program = os.posix_spawnp(command[0], command, os.environ, setsigdef=usual)
    except OSError as error:
        os.write(outcome, f"unstarted {error.strerror}".encode())
    else:
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        os.write(outcome, f"ended {code}".encode())
    os.killpg(0, signal.SIGKILL)  # what the program left running, and this


def _kill_when_closed(watch: int) -> None:
    os.read(watch, 1)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
