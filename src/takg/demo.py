"""`takg demo`: tune a real network on scikit-learn's digits, with checkpoints, two fidelities and two workers."""

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from takg._api import create_study
from takg.errors import InputError
from takg.space import Fidelity, Float, Int
from takg.study import Evaluation, Study

EPOCHS, IMAGES = 27, 1000
SPACE = {
    "lr": Float(1e-4, 1.0, log=True, default=0.01),
    "momentum": Float(0.0, 0.99, default=0.9),
    "weight_decay": Float(1e-6, 1e-1, log=True, default=1e-4),
    "dropout": Float(0.0, 0.8, default=0.5),
    "batch_size": Int(8, 256, log=True, default=64),
}
FIDELITIES = {
    "epochs": Fidelity(1, EPOCHS, trace=True),
    "images": Fidelity(100, IMAGES, trace=False),
}


class Data:
    """Handwritten digits of 8 x 8 pixels: images to train on, others to tune by, and others for the last word."""

    def __init__(self) -> None:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise InputError("the demo needs scikit-learn: pip install 'takg[demo]'") from error
        pixels, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        x = torch.tensor(pixels, dtype=torch.float32)[order].reshape(-1, 1, 8, 8) / 16
        y = torch.tensor(labels)[order]
        self.train = x[:IMAGES], y[:IMAGES]
        self.valid = x[IMAGES : IMAGES + 400], y[IMAGES : IMAGES + 400]
        self.test = x[IMAGES + 400 :], y[IMAGES + 400 :]


data = functools.cache(Data)


class Trainer:
    """A small convolutional network and its optimiser; all of its state fits in one file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(config["dropout"]),
            nn.Linear(64 * 16, 128),
            nn.ReLU(),
            nn.Linear(128, 10),
        )
        self.optimizer = torch.optim.SGD(
            self.network.parameters(),
            lr=config["lr"],
            momentum=config["momentum"],
            weight_decay=config["weight_decay"],
        )
        self.batch_size: int = config["batch_size"]

    def epoch(self, number: int, images: int) -> None:
        x, y = data().train
        self.network.train()
        order = torch.randperm(images, generator=torch.Generator().manual_seed(number))
        for batch in order.split(self.batch_size):
            self.optimizer.zero_grad()
            nn.functional.cross_entropy(self.network(x[batch]), y[batch]).backward()
            self.optimizer.step()

    @torch.no_grad()
    def scores(self, part: tuple[Tensor, Tensor]) -> tuple[float, float]:
        """Cross-entropy and share of errors."""
        self.network.eval()
        output = self.network(part[0])
        return float(nn.functional.cross_entropy(output, part[1])), float((output.argmax(-1) != part[1]).float().mean())

    def save(self, path: Path) -> None:
        torch.save({"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


def train(evaluation: Evaluation) -> None:
    """One leg of one training run: what a user of takg writes."""
    trainer = Trainer(evaluation.config)
    if evaluation.resumed:
        trainer.load(evaluation.checkpoint / "state.pt")
    for epoch in evaluation.steps("epochs"):
        trainer.epoch(epoch, int(evaluation.fidelity["images"]))
        loss, _ = trainer.scores(data().valid)
        evaluation.report(loss, epochs=epoch)
    trainer.save(evaluation.checkpoint / "state.pt")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="takg demo",
        description="Tune a convolutional network on 8 x 8 digits: five hyperparameters, two fidelities (epochs, "
        "training images), runs that are continued from checkpoints. Interrupt it and start it again: it goes on.",
        epilog="example: takg demo --budget 6 --workers 2",
    )
    parser.add_argument("--budget", type=float, default=4.0, help="total cost in full trainings (default: 4)")
    parser.add_argument("--workers", type=int, default=2, help="training processes (default: 2)")
    parser.add_argument("--directory", type=Path, default=Path("takg-demo"), help="where all files go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None)
    given = parser.parse_args(arguments)
    given.directory.mkdir(parents=True, exist_ok=True)
    study = create_study(
        SPACE,
        FIDELITIES,
        name="digits",
        storage=given.directory / "study.db",
        seed=given.seed,
        load_if_exists=True,
    )
    if study.state.evaluations:
        print(f"going on with the study in {given.directory}: {len(study.state.evaluations)} evaluations so far")
    study.optimize(train, budget=given.budget, workers=given.workers, progress=given.progress)
    _report(study, given.directory)
    return 0


def _report(study: Study, directory: Path) -> None:
    from takg.plots import figures

    _print_trials(study)
    best = study.best
    print(f"\n{len(study.state.evaluations)} evaluations, {study.spent():.1f} full trainings' worth of time")
    print(f"recommended: {_shown(best.config)}")
    print(
        f"predicted validation loss when trained in full: {best.median:.4f} (90 %: {best.low:.4f} to {best.high:.4f})\n"
    )
    print(f"{'trained in full':<24}{'validation loss':>16}{'validation error':>18}{'test error':>12}")
    for label, config in (("recommended", best.config), ("default", study.plan.space.defaults())):
        trainer = Trainer(config)
        for epoch in range(1, EPOCHS + 1):
            trainer.epoch(epoch, IMAGES)
        (loss, error), (_, test_error) = trainer.scores(data().valid), trainer.scores(data().test)
        print(f"{label:<24}{loss:>16.4f}{error:>18.2%}{test_error:>12.2%}")
    print()
    for kind, figure in figures(study).items():
        for suffix in ("png", "html"):
            figure.save(directory / f"{kind}.{suffix}")
    print(f"plots: {directory}/*.png and *.html")


def _print_trials(study: Study) -> None:
    print(
        f"{'trial':>5}  {'status':<9} {'legs':>4} {'epochs':>6} {'images':>6} {'loss':>8} {'cost s':>7}  why it ended"
    )
    for trial in study.trials:
        at = trial.fidelity or {"epochs": 0, "images": 0}
        value = "" if trial.value is None else f"{trial.value:.4f}"
        print(
            f"{trial.id:>5}  {trial.status:<9} {trial.legs:>4} {at['epochs']:>6g} {at['images']:>6g} {value:>8} "
            f"{trial.cost:>7.1f}  {trial.reason}"
        )


def _shown(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value:.3g}" for name, value in config.items())
