"""What the device reaches: copies, sorts, matrix products, launches."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu.clock import Clock

Row = dict[str, object]


def copies(clock: Clock, *, quick: bool) -> Iterator[Row]:
    """Device copies, and copies from and to pinned host memory."""
    for num_bytes in (2**20, 2**22) if quick else (2**24, 2**28, 2**31):
        source = torch.ones(num_bytes // 4, device=clock.device)
        target = torch.empty_like(source)
        spent = clock.median_us(lambda _i, t=target, s=source: t.copy_(s))
        yield {"item": "copy", "size": num_bytes, "time_us": spent}
        if clock.device.type == "cuda" and num_bytes <= 2**28:
            host = torch.ones(num_bytes // 4, pin_memory=True)
            spent = clock.median_us(lambda _i, t=target, h=host: t.copy_(h, non_blocking=True))
            yield {"item": "host to device", "size": num_bytes, "time_us": spent}
            spent = clock.median_us(lambda _i, t=target, h=host: h.copy_(t, non_blocking=True))
            yield {"item": "device to host", "size": num_bytes, "time_us": spent}


def sorts(clock: Clock, *, quick: bool) -> Iterator[Row]:
    """Sorts of 64-bit keys, as a backward sorts its indices."""
    for count in (10**4, 10**5) if quick else (10**5, 10**6, 10**7, 10**8):
        keys = torch.randint(2**40, (count,), device=clock.device)
        spent = clock.median_us(lambda _i, k=keys: torch.sort(k))
        yield {"item": "sort", "size": count, "time_us": spent}


def launches(clock: Clock, *, quick: bool) -> Iterator[Row]:
    """Host time to issue a tiny kernel, and device time between two of them."""
    tiny = torch.zeros(1, device=clock.device)
    number = 100 if quick else 1000
    yield {
        "item": "launch, host",
        "size": 1,
        "time_us": clock.host_us(lambda: tiny.add_(1), number),
    }

    def many(_i: int) -> None:
        for _ in range(100):
            tiny.add_(1)

    yield {"item": "launch, device", "size": 1, "time_us": clock.median_us(many) / 100}


def products(clock: Clock, *, quick: bool) -> Iterator[Row]:
    """Layers of DLRMs and one large product, with and without tensor cores."""
    batches = (64,) if quick else (2048, 16384, 65536)
    shapes = [
        (13, 512),
        (512, 256),
        (256, 128),
        (479, 1024),
        (1024, 1024),
        (3456, 512),
        (512, 3456),
    ]
    cases = [(m, k, n) for m in batches for k, n in shapes]
    cases += [] if quick else [(8192, 8192, 8192)]
    dtypes = {"fp32": torch.float32} if quick else {"fp32": torch.float32, "bf16": torch.bfloat16}
    for m, k, n in cases:
        for name, dtype in dtypes.items():
            left = torch.randn(m, k, device=clock.device, dtype=dtype)
            right = torch.randn(k, n, device=clock.device, dtype=dtype)
            spent = clock.median_us(lambda _i, a=left, b=right: a @ b)
            yield {"batch": 1, "M": m, "K": k, "N": n, "dtype": name, "time_us": spent}
