"""A generator against a discriminator, beside the same loop in bare PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.learn.generative.duel import BETAS, Bout, Samples, fight
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.generative.losses import total_variation
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.model import outputs
from coterie.rng import Rng

STEPS, FAKE = 20, 10
AT_LEAST = 1 / 1.2  # of the bare loop's speed


def duel(options: Options) -> Iterator[Ratio]:
    how = Bout(STEPS, 64, diversity=0.0, contrast=0.0, jitter=0, only_fakes=False)
    rng = Rng.seeded(options.seed)
    model, generator = StridedCnn(11, (1, 28, 28)), PictureGenerator(10, (1, 28, 28))
    draws = rng.child("samples").torch()
    samples = Samples(torch.rand(500, 1, 28, 28, generator=draws), torch.randint(10, (500,), generator=draws))
    start = model.init(options.seed)

    def ours() -> None:
        fight(how, generator, None, lambda params, x: outputs(model, params, x), start, samples, FAKE, 1.0, rng)

    times = interleaved({"ours": ours, "bare": lambda: bare(how, generator, model, samples, rng)}, options.repeats)
    setup = "the same losses and optimisers on two nn.Modules, nothing kept and nothing drawn by name"
    name = f"{STEPS} steps of generator and discriminator"
    yield Ratio(name, times["ours"].best, "s", times["bare"].best, AT_LEAST, setup=setup)


def bare(how: Bout, generator: PictureGenerator, model: StridedCnn, samples: Samples, rng: Rng) -> None:
    net, judge = generator.build(0), model.build()
    learner = torch.optim.Adam(net.parameters(), how.generator_lr, BETAS)
    critic = torch.optim.Adam(judge.parameters(), how.discriminator_lr, BETAS)
    draws = rng.child("bare").torch()
    for _ in range(how.steps):
        labels = torch.randint(10, (how.batch,), generator=draws)
        made = net(torch.randn(how.batch, generator.latent, generator=draws), labels)
        rows = torch.randint(len(samples.y), (how.batch,), generator=draws)
        x, y = torch.cat([samples.x[rows], made.detach()]), torch.cat([samples.y[rows], labels * 0 + FAKE])
        critic.zero_grad()
        cross_entropy(judge(x), y).backward()
        critic.step()
        learner.zero_grad()
        (cross_entropy(judge(made), labels) + how.smooth * total_variation(made)).backward()
        learner.step()
