"""Less noise in the posterior than hyperparameters are learned with; docs/paper.md#sharpened.

Hyperparameters are learned with outputs that are trusted to a thousandth of their sd (`NOISE_FLOOR`): with less, every
trifle that the kernel cannot explain is explained by shorter length scales. But how far down a smooth bowl its bottom
can be told from its sides is a matter of the noise, too.
"""

import dataclasses

import torch
from torch import Tensor

from takg.gp._posterior import Posterior, condition

SHARP_NOISE = 1e-8  # outputs are trusted to 1e-4 of their sd
_UNKNOWN = 1e-3  # share of a quirk's variance that does not go as 1 - prod s


def sharpened(post: Posterior) -> Posterior:
    """With next to no noise under each hyperparameter sample that makes the data likelier so; of values, not slopes.

    Where designs have quirks, low fidelity keeps its noise: two looks without any would tell a quirk from the rest, if
    its shape were right to the last digit.
    """
    noise = torch.full_like(post.theta.noise_var, SHARP_NOISE).minimum(post.theta.noise_var)
    quirk_var = post.theta.quirk_var
    low = None if quirk_var is None else (_UNKNOWN * quirk_var).minimum(post.theta.noise_var - noise)
    sharp = condition(
        post.model, dataclasses.replace(post.theta, noise_var=noise, low_noise_var=low), post.rows, post.y
    )
    is_sharp = (_log_likelihood(sharp) > _log_likelihood(post)) & (sharp.jitter == 0)
    return dataclasses.replace(
        post,
        theta=dataclasses.replace(
            post.theta,
            noise_var=torch.where(is_sharp, noise, post.theta.noise_var),
            low_noise_var=None if low is None else torch.where(is_sharp, low, 0.0),
        ),
        L=torch.where(is_sharp[:, None, None], sharp.L, post.L),
        weights=torch.where(is_sharp[:, None], sharp.weights, post.weights),
        jitter=torch.where(is_sharp, sharp.jitter, post.jitter),
    )


def _log_likelihood(post: Posterior) -> Tensor:
    """Of the outputs under each sample, up to a constant, (H,); not a number where numbers are too large."""
    return -0.5 * (post.weights @ post.y) - post.L.diagonal(dim1=-2, dim2=-1).log().sum(-1)
