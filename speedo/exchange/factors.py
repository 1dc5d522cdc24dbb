"""Sufficient factors: the gradient of an inner product's weight over R rows of a batch is left' right.

`left` is R x m and `right` R x n, so R (m + n) numbers say what m n numbers say (Zhang et al. 2017, "Poseidon", 3.2;
Xie et al. 2015). Hosts then exchange the rows of all, and each makes the sum itself: one matrix product. Which of the
two ways moves fewer bytes depends on the number of hosts and rows, and is chosen layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from speedo.exchange.vector import Vector

Matrix = npt.NDArray[np.float32]
# Rows of a product that are made at a time. These places are fixed, so the bits of a sum do not depend on who makes
# which of them: OpenBLAS treats the edges of a matrix in another way than its middle.
BLOCK: Final = 512


@dataclass(frozen=True, slots=True)
class Product:
    """The weight `name` of an inner product, of `left` x `right` values, from the value `start` of the vector on.

    `rows` are those of one worker's step.
    """

    name: str
    start: int
    left: int
    right: int
    rows: int

    @property
    def stop(self) -> int:
        return self.start + self.left * self.right

    @property
    def values(self) -> int:
        """float32 values of one worker's factors."""
        return self.rows * (self.left + self.right)


@dataclass(frozen=True, slots=True)
class Factors:
    """Memory for one worker's factors of a product's gradient: `product.rows` x `left`, and x `right`."""

    product: Product
    left: Matrix
    right: Matrix


@dataclass(frozen=True, slots=True)
class Choice:
    """What an exchange of a product's gradient moves out of each host, in bytes."""

    product: Product
    ring: int
    factors: int

    @property
    def pays(self) -> bool:
        """Whether factors move less."""
        return self.factors < self.ring


def choices(products: Sequence[Product], workers: Sequence[int]) -> list[Choice]:
    """For n hosts with this many workers each; bytes are those of the host that sends most.

    A ring moves 2 (n - 1) / n of a sum, an all-gather (n - 1) / n of all rows.
    """
    hosts = len(workers)
    found = []
    for one in products:
        ring = 8 * (hosts - 1) * one.left * one.right // hosts
        # A host passes on the rows of all hosts but the one that follows it.
        factors = 4 * one.values * (sum(workers) - min(workers))
        found.append(Choice(one, ring, factors))
    return found


def table(found: Sequence[Choice]) -> Iterator[str]:
    """A line for each product: which way its gradient takes, and why."""
    for one in found:
        way = "factors" if one.pays else "ring"
        yield (
            f"{one.product.name}: {way} ({one.factors / 1e6:,.2f} MB a round as factors of {one.product.rows:,} rows a "
            f"worker, {one.ring / 1e6:,.2f} MB in the ring)"
        )


@dataclass(frozen=True)
class FactorSpace:
    """The factors of these products by all workers, in one vector: first those of worker 0, and so on.

    So what a host's workers bring is one piece of memory.
    """

    products: tuple[Product, ...]
    workers: int
    memory: Vector

    @property
    def each(self) -> int:
        """Values of one worker."""
        return sum(one.values for one in self.products)

    @staticmethod
    def values_for(products: Sequence[Product], workers: int) -> int:
        return workers * sum(one.values for one in products)

    def of(self, worker: int) -> tuple[Factors, ...]:
        """Where this worker's are."""
        found, at = [], worker * self.each
        for one in self.products:
            middle, end = at + one.rows * one.left, at + one.values
            left = self.memory[at:middle].reshape(one.rows, one.left)
            right = self.memory[middle:end].reshape(one.rows, one.right)
            found.append(Factors(one, left, right))
            at = end
        return tuple(found)

    def add_up(self, number: int, weights: Sequence[float], out: Vector, blocks: slice) -> None:
        """Make these blocks of the sum of product `number`, each worker's times its weight, in its place in `out`.

        Each of `BLOCK` rows of the weight; members of a host make some each. With the same processor and BLAS the bits
        are the same on every host.
        """
        one = self.products[number]
        given = [self.of(worker)[number] for worker in range(self.workers)]
        right = np.concatenate([factors.right for factors in given])
        left = np.empty((len(right), min(BLOCK, one.left)), np.float32)
        whole = out[one.start : one.stop].reshape(one.left, one.right)
        for block in range(*blocks.indices(blocks_of(one))):
            first, last = block * BLOCK, min((block + 1) * BLOCK, one.left)
            part = left[:, : last - first]
            for at, (factors, weight) in enumerate(zip(given, weights, strict=True)):
                rows = part[at * one.rows : (at + 1) * one.rows]
                np.multiply(factors.left[:, first:last], np.float32(weight), out=rows)
            np.matmul(part.T, right, out=whole[first:last])


def blocks_of(product: Product) -> int:
    """How many blocks its sum has."""
    return -(-product.left // BLOCK)
