"""Which library multiplies: chosen by the processor, never at the cost of float32."""

from collections.abc import Iterator

import pytest
import torch

from shoal import products


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = torch.backends.mkldnn.matmul.fp32_precision
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def test_products_are_float32_whoever_multiplies() -> None:
    products.choose_library()
    a = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    error = (a @ a.T).double() - a.double() @ a.double().T
    assert float(error.abs().max()) < 1e-3  # of entries up to 300; bfloat16 is off by more than 0.1


def test_another_processor_keeps_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_amd_with_avx512", lambda: False)
    before = torch.backends.mkldnn.matmul.fp32_precision
    assert not products.choose_library()
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_a_library_that_rounds_more_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_amd_with_avx512", lambda: True)
    monkeypatch.setattr(products, "_computes_in_float32", lambda: False)
    before = torch.backends.mkldnn.matmul.fp32_precision
    assert not products.choose_library()
    assert torch.backends.mkldnn.matmul.fp32_precision == before


def test_rounding_to_bfloat16_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.mm
    assert products._computes_in_float32()

    def rounded(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return exact(a.bfloat16(), b.bfloat16()).to(a.dtype) if a.dtype == torch.float32 else exact(a, b)

    monkeypatch.setattr(products.torch, "mm", rounded)
    assert not products._computes_in_float32()
