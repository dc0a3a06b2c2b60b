"""Whatever is packed comes out the same, in buckets that hold their bound."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import TransferError
from rlhf.weight_sync.buckets import ALIGNMENT, Buffers, bytes_of, cut_buckets, digest, pack_bucket, unpack_bucket
from rlhf.weight_sync.types import Manifest, TensorSpec

CPU = torch.device("cpu")
DTYPES = ("float32", "bfloat16", "float16", "int8", "int64")
SHAPES = st.lists(st.integers(0, 7), max_size=3).map(tuple)
MANIFESTS = st.lists(st.tuples(st.sampled_from(DTYPES), SHAPES), max_size=20).map(
    lambda kinds: Manifest(
        tensors=tuple(TensorSpec(name=f"layer.{i}", dtype=dtype, shape=shape) for i, (dtype, shape) in enumerate(kinds))
    )
)


def tensors_of(manifest: Manifest) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {spec.name: torch.randint(-100, 100, spec.shape).to(getattr(torch, spec.dtype)) for spec in manifest.tensors}


@settings(max_examples=100, deadline=None)
@given(manifest=MANIFESTS, bucket_bytes=st.integers(1, 2000))
def test_every_tensor_comes_out_as_it_went_in(manifest: Manifest, bucket_bytes: int) -> None:
    sent = tensors_of(manifest)
    source = iter(sent.items())
    buckets = cut_buckets(manifest, bucket_bytes)
    buffers = Buffers(CPU, 2)
    buffers.reserve(buckets)
    received = {}
    for index, bucket in enumerate(buckets):
        buffer = buffers.turn(index, bucket)
        packed = bytes_of(bucket, source, CPU) if bucket.alone else pack_bucket(bucket, source, buffer)
        assert packed.numel() == buffer.numel() == bucket.bytes
        buffer.copy_(packed)
        received |= {name: tensor.clone() for name, tensor in unpack_bucket(bucket, buffer)}
    assert list(received) == list(sent)
    assert all(
        torch.equal(received[name], tensor) and received[name].dtype == tensor.dtype for name, tensor in sent.items()
    )


@settings(max_examples=100, deadline=None)
@given(manifest=MANIFESTS, bucket_bytes=st.integers(1, 2000))
def test_a_bucket_is_within_its_bound_or_one_tensor(manifest: Manifest, bucket_bytes: int) -> None:
    for bucket in cut_buckets(manifest, bucket_bytes):
        assert bucket.bytes <= bucket_bytes or len(bucket.slots) == 1
        assert bucket.alone == (bucket.bytes > bucket_bytes)
        assert all(slot.start % ALIGNMENT == 0 for slot in bucket.slots)
        assert all(before.stop <= after.start for before, after in zip(bucket.slots, bucket.slots[1:], strict=False))


def test_the_number_of_buckets_follows_bytes_and_not_tensors() -> None:
    few = Manifest(tensors=(TensorSpec(name="all", dtype="float32", shape=(64, 1024)),))
    many = Manifest(tensors=tuple(TensorSpec(name=f"{i}", dtype="float32", shape=(64,)) for i in range(1024)))
    assert math.prod(few.tensors[0].shape) == 64 * len(many.tensors)
    assert len(cut_buckets(few, 2**20)) == len(cut_buckets(many, 2**20)) == 1


def test_a_transposed_tensor_is_packed_by_its_values() -> None:
    manifest = Manifest(tensors=(TensorSpec(name="w", dtype="float32", shape=(3, 2)),))
    (bucket,) = cut_buckets(manifest, 100)
    buffer = torch.empty(bucket.bytes, dtype=torch.uint8)
    weight = torch.arange(6.0).view(2, 3).T
    pack_bucket(bucket, iter([("w", weight)]), buffer)
    assert torch.equal(dict(unpack_bucket(bucket, buffer))["w"], weight)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ([], "no tensor for it"),
        ([("v", torch.zeros(2))], "next tensor is v float32"),
        ([("w", torch.zeros(3))], r"\[3\]"),
        ([("w", torch.zeros(2, dtype=torch.bfloat16))], "bfloat16"),
    ],
    ids=["missing", "another name", "another shape", "another dtype"],
)
def test_tensors_that_are_not_the_manifests_are_refused(tensors: list, complaint: str) -> None:
    manifest = Manifest(tensors=(TensorSpec(name="w", dtype="float32", shape=(2,)),))
    (bucket,) = cut_buckets(manifest, 100)
    with pytest.raises(TransferError, match=complaint):
        pack_bucket(bucket, iter(tensors), torch.empty(bucket.bytes, dtype=torch.uint8))


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(TransferError, match="float31"):
        cut_buckets(Manifest(tensors=(TensorSpec(name="w", dtype="float31", shape=(2,)),)), 100)


def test_the_digest_tells_manifests_and_bucket_sizes_apart() -> None:
    one, other = (Manifest(tensors=(TensorSpec(name=name, dtype="float32", shape=(2,)),)) for name in "ab")
    assert len({digest(one, 4), digest(other, 4), digest(one, 8)}) == 3
    assert digest(one, 4) == digest(one, 4)
