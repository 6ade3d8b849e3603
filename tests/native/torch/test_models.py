"""Models on an emulated card: they run, and their arithmetic takes the time it should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed.card import driver_root, profiles
from testbed.lab.cluster.protocol import CardSpec
from testbed.native import card

pytestmark = pytest.mark.slow

Run = Callable[..., dict[str, Any]]
Cards = Callable[..., Path]
Start = Callable[..., Any]

MODELS = """
import torch.nn as nn, torch.nn.functional as F
def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1, groups=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
def encoder():
    return nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda()
def step(model, x, target, optimizer, dtype):
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
        out = model(x)
        loss = F.cross_entropy(out.reshape(-1, out.shape[-1]).float(), target)
    loss.backward()
    optimizer.step()
    return loss.item()
def train(model, x, classes, targets, dtype, kind):
    optimizer = (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) if kind == "sgd"
                 else torch.optim.AdamW(model.parameters()))
    target = torch.randint(0, classes, (targets,)).cuda()
    losses = [step(model, x, target, optimizer, dtype) for _ in range(3)]
    model.eval()
    with torch.no_grad():
        return len(losses), list(model(x).shape)
"""


@pytest.mark.parametrize("profile", ["a100-80gb", "t4", "h200"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_steps_run(tmp_path: Path, run: Run, profile: str, dtype: str) -> None:
    root = tmp_path / "root"
    driver_root.make(root, [CardSpec(profile=profile)])
    found = run(
        root,
        MODELS
        + f"""
dtype = torch.{dtype}
image, text = torch.randn(8, 3, 32, 32).cuda(), torch.randn(4, 16, 64).cuda()
done = [train(cnn(), image, 10, 8, dtype, kind) for kind in ("sgd", "adamw")]
last = image.to(memory_format=torch.channels_last)
done.append(train(cnn().to(memory_format=torch.channels_last), last, 10, 8, dtype, "adamw"))
done.append(train(encoder(), text, 64, 64, dtype, "adamw"))
say(done=done)
""",
    )
    assert found["done"] == [[3, [8, 10]]] * 3 + [[3, [4, 16, 64]]]
    assert "not emulated" not in found["errors"]


def test_operations_that_end_in_the_math_libraries_run(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
import torch.nn as nn, torch.nn.functional as F
shapes = {}
for dtype in (torch.half, torch.bfloat16, torch.float, torch.double, torch.cfloat, torch.cdouble):
    a, v = (torch.empty(*s, device="cuda", dtype=dtype) for s in ((32, 32), (32,)))
    shapes[str(dtype)] = [list(x.shape) for x in (
        a @ a, a @ v, torch.dot(v, v), torch.addmm(a, a, a),
        torch.baddbmm(a[None], a[None], a[None]), torch.outer(v, v), F.linear(a, a, v))]
a, v = torch.empty(32, 32, device="cuda"), torch.empty(32, device="cuda")
i = torch.zeros(32, 32, dtype=torch.int8, device="cuda")
others = [torch.linalg.solve_triangular(a, a, upper=True), torch._addmm_activation(v, a, a),
          torch._int_mm(i, i)]
convolutions = [nn.Conv1d(4, 8, 3).cuda()(torch.empty(2, 4, 16, device="cuda")),
                nn.Conv3d(4, 8, 3).cuda()(torch.empty(2, 4, 8, 8, 8, device="cuda")),
                nn.ConvTranspose2d(4, 8, 3).cuda()(torch.empty(2, 4, 8, 8, device="cuda"))]
image = torch.empty(1, 3, 9, 9, device="cuda")
for flags in ({"benchmark": True}, {"deterministic": True}, {"allow_tf32": False}):
    with torch.backends.cudnn.flags(enabled=True, **flags):
        convolutions.append(nn.Conv2d(3, 8, 3).cuda()(image))
torch.cuda.synchronize()
say(shapes=shapes, others=[list(x.shape) for x in others],
    convolutions=[list(x.shape) for x in convolutions])
""",
    )
    one = [[32, 32], [32], [], [32, 32], [1, 32, 32], [32, 32], [32, 32]]
    assert list(found["shapes"].values()) == [one] * 6
    assert found["others"] == [[32, 32]] * 3
    assert found["convolutions"] == [
        [2, 8, 14], [2, 8, 6, 6, 6], [2, 8, 10, 10], *[[1, 8, 7, 7]] * 3
    ]  # fmt: skip
    assert "not emulated" not in found["errors"]


def test_recurrent_networks_train_and_keep_their_weights(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
import torch.nn as nn, torch.nn.functional as F
done, kept = [], []
cases = [(kind, options) for kind in (nn.LSTM, nn.GRU, nn.RNN)
         for options in ({}, {"bidirectional": True, "num_layers": 2}, {"bias": False},
                         {"dropout": 0.2, "num_layers": 3})]
cases.append((nn.LSTM, {"proj_size": 4}))
for kind, options in cases:
    # Moving the network puts its parameters where the library wants them: as they were.
    model = kind(6, 8, **options)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.cuda()
    kept.append(all(torch.equal(before[n], v.cpu()) for n, v in model.state_dict().items()))
    for dtype in (torch.float, torch.half):
        model.to(dtype).train()
        x = torch.randn(5, 3, 6).to("cuda", dtype).requires_grad_()
        y = model(x)[0]
        y.sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        width = options.get("proj_size", 8) * (2 if options.get("bidirectional") else 1)
        done.append(list(y.shape) == [5, 3, width] and x.grad.shape == x.shape)
packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 6).cuda(), [5, 4, 2])
out, _ = nn.LSTM(6, 8).cuda()(packed)
image, grid = (torch.empty(*size, device="cuda", requires_grad=True)
               for size in ((1, 3, 8, 8), (1, 4, 4, 2)))
sampled = F.grid_sample(image, grid, align_corners=True)
sampled.sum().backward()
say(done=done, kept=kept, packed=list(out.data.shape), sampled=list(sampled.shape))
""",
    )
    assert found["kept"] == [True] * 13
    assert found["done"] == [True] * 26
    assert found["packed"] == [11, 8] and found["sampled"] == [1, 3, 4, 4]
    assert "not emulated" not in found["errors"]


# --- time ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("profile", "dtype", "rate"),
    [
        ("a100-80gb", "float16", "fp16_flops"),
        ("a100-80gb", "bfloat16", "fp16_flops"),
        ("a100-80gb", "float32", "fp32_flops"),
        ("a100-80gb", "tf32", "tf32_flops"),
        ("a100-80gb", "float64", "fp64_flops"),
        ("h200", "float16", "fp16_flops"),
        ("t4", "float16", "fp16_flops"),
    ],
)
def test_a_product_takes_its_arithmetic_of_the_card(
    tmp_path: Path, start: Start, profile: str, dtype: str, rate: str
) -> None:
    """By the card's own book, which knows nothing of how fast this machine is."""
    root = tmp_path / "root"
    (uuid,) = driver_root.make(root, [CardSpec(profile=profile)])
    size, products = (4096, 5) if dtype in ("float16", "bfloat16", "tf32") else (2048, 3)
    script = start(
        root,
        f"""
torch.backends.cuda.matmul.allow_tf32 = {dtype == "tf32"}
a, b = (torch.empty({size}, {size}, device="cuda", dtype=torch.{dtype.replace("tf32", "float32")})
        for _ in range(2))
torch.mm(a, a, out=b); torch.cuda.synchronize()
say(ready=True); until("go")
for _ in range({products}):
    torch.mm(a, a, out=b)
torch.cuda.synchronize()
say(done=True); until("end")
""",
    )
    state = root / "cards" / uuid / "state"
    script.says()
    (before,) = card.read(state).slots
    script.hears("go")
    script.says()
    (after,) = card.read(state).slots
    script.hears("end")
    script.ends()
    figures = profiles.load(profile).figures
    expected = products * (
        2 * size**3 / figures[rate].value * 1e9 + figures["launch_overhead_ns"].value
    )
    assert after.busy_ns - before.busy_ns == pytest.approx(expected, rel=0.01)


def test_a_convolution_takes_its_arithmetic_forward_and_backward(
    cards: Cards, start: Start
) -> None:
    root = cards()
    script = start(
        root,
        """
import torch.nn as nn
x = torch.empty(32, 64, 56, 56, device="cuda", dtype=torch.half, requires_grad=True)
model = nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda().half()
gradient = torch.empty_like(x)
model(x).backward(gradient); torch.cuda.synchronize()
say(ready=True)
for what in ("forward", "backward"):
    until(what)
    if what == "forward":
        y = model(x)
    else:
        # Into fresh memory: nothing is added up.
        torch.autograd.grad(y, (x, model.weight), gradient)
    torch.cuda.synchronize()
    say(done=what)
until("end")
""",
    )
    (state,) = (root / "cards").glob("*/state")
    busy = []
    for word in ("forward", "backward", "end"):
        script.says()
        (slot,) = card.read(state).slots
        busy.append(slot.busy_ns)
        script.hears(word)
    script.ends()
    figures = profiles.load("a100-80gb").figures
    flops = 2 * 32 * 64 * 56 * 56 * 64 * 9
    overhead = figures["launch_overhead_ns"].value
    arithmetic = flops / figures["fp16_flops"].value * 1e9 + overhead
    forward, backward = busy[1] - busy[0], busy[2] - busy[1]
    assert forward == pytest.approx(arithmetic, rel=0.02)
    assert backward == pytest.approx(2 * arithmetic, rel=0.02)


# --- sizes that no kernel computed ------------------------------------------------------


def test_what_counts_says_that_nothing_was_found(cards: Cards, run: Run) -> None:
    """Never a size from memory that something else was in before."""
    found = run(
        cards(),
        """
import resource
def stale():
    # Blocks that the allocator gives out again, full of what is no size.
    kept = [torch.full((n,), 0x7f7f7f7f7f7f7f7f, dtype=torch.int64).cuda() for n in (1, 64, 4096)]
    del kept
x = torch.randn(4096).cuda()
i = torch.randint(0, 9, (4096,)).cuda()
sizes = {}
for name, operation in {
    "nonzero": lambda: torch.nonzero(x), "mask": lambda: x[x > 0],
    "masked_select": lambda: torch.masked_select(x, x > 0), "unique": lambda: torch.unique(x),
    "unique_dim": lambda: torch.unique(i.view(64, 64), dim=0),
    "consecutive": lambda: torch.unique_consecutive(x), "argwhere": lambda: torch.argwhere(x),
    "large": lambda: torch.nonzero(torch.empty(1 << 22, device="cuda")),
}.items():
    stale()
    sizes[name] = operation().numel()
stale()
text = str(x)
say(sizes=sizes, text=text[:7], rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
""",
    )
    assert set(found["sizes"].values()) == {0}, found["sizes"]
    assert found["text"] == "tensor("
    assert found["rss_mib"] < 1500
