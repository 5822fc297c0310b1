"""A generator against a discriminator, beside the same loop in bare PyTorch: alone, and as the attack has it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import cosine_similarity, cross_entropy, softplus

from coterie.bench.ratio import Ratio, interleaved
from coterie.bench.registry import Options
from coterie.learn.generative.duel import AHEAD, BETAS, STROKES_LR, Bout, Moved, Samples, fight
from coterie.learn.generative.generator import PictureGenerator
from coterie.learn.generative.losses import total_variation
from coterie.learn.models.bundled import StridedCnn
from coterie.learn.models.model import outputs
from coterie.rng import Rng

STEPS, FAKE = 20, 10
AT_LEAST = 1 / 1.2  # of the bare loop's speed
GAN = Bout(STEPS, 64, alpha=1.0, matching=0.0, strokes=0.0, contrast=0.0, jitter=0, only_fakes=False)
WHOLE = Bout(STEPS, 64, alpha=1.0, contrast=0.0, jitter=0, only_fakes=False)


def duel(options: Options) -> Iterator[Ratio]:
    rng = Rng.seeded(options.seed)
    model, generator = StridedCnn(11, (1, 28, 28)), PictureGenerator(10, (1, 28, 28))
    draws = rng.child("samples").torch()
    samples = Samples(torch.rand(500, 1, 28, 28, generator=draws), torch.randint(10, (500,), generator=draws))
    start, end = model.init(options.seed), model.init(options.seed + 1)
    seen = Moved(start, {name: leaf - start[name] for name, leaf in end.items()})
    setup = "the same losses and optimisers on nn.Modules, nothing kept and nothing drawn by name"
    for how, name in ((GAN, "generator and discriminator"), (WHOLE, "the same, explaining an update, with strokes")):

        def ours(how: Bout = how) -> None:
            fight(how, generator, None, lambda p, x: outputs(model, p, x), start, samples, FAKE, 1.0, rng, [seen])

        def theirs(how: Bout = how) -> None:
            bare(how, generator, model, samples, seen, rng)

        times = interleaved({"ours": ours, "bare": theirs}, options.repeats)
        yield Ratio(f"{STEPS} steps of {name}", times["ours"].best, "s", times["bare"].best, AT_LEAST, setup=setup)


def bare(how: Bout, generator: PictureGenerator, model: StridedCnn, samples: Samples, seen: Moved, rng: Rng) -> None:
    net, judge, ahead, patches = generator.build(0), model.build(), model.build(), generator.critic(0)
    ahead.load_state_dict({name: leaf + AHEAD * seen.update[name] for name, leaf in seen.start.items()})
    learner = torch.optim.Adam(net.parameters(), how.generator_lr, BETAS)
    critic = torch.optim.Adam(judge.parameters(), how.discriminator_lr, BETAS)
    strokes = torch.optim.Adam(patches.parameters(), STROKES_LR, BETAS)
    draws = rng.child("bare").torch()
    for _ in range(how.steps):
        labels = torch.randint(10, (how.batch,), generator=draws)
        made = net(torch.randn(how.batch, generator.latent, generator=draws), labels)
        rows = torch.randint(len(samples.y), (how.batch,), generator=draws)
        x, y = torch.cat([samples.x[rows], made.detach()]), torch.cat([samples.y[rows], labels * 0 + FAKE])
        critic.zero_grad()
        cross_entropy(judge(x), y).backward()
        critic.step()
        loss = cross_entropy(judge(made), labels) + how.smooth * total_variation(made)
        if how.matching:
            told = cross_entropy(ahead(made), labels)
            slopes = torch.autograd.grad(told, list(ahead.parameters()), create_graph=True)
            for slope, update in zip(slopes, seen.update.values(), strict=True):
                if update.dim() > 1:
                    loss = loss + how.matching * (1 - cosine_similarity(-slope.flatten(), update.flatten(), dim=0))
        if how.strokes:
            real = torch.cat([one.rot90(turn, (2, 3)) for turn, one in enumerate(samples.x[rows].chunk(4))])
            strokes.zero_grad()
            (softplus(-patches(real)).mean() + softplus(patches(made.detach())).mean()).backward()
            strokes.step()
            loss = loss + how.strokes * softplus(-patches(made)).mean()
        learner.zero_grad()
        loss.backward()
        learner.step()
