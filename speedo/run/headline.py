"""The lines that a run prints before it starts: batches and rates, which users most often get wrong."""

from __future__ import annotations

from typing import Final

from speedo.engines.net_trial import CaffeFacts
from speedo.engines.solver.data_layers import undivided
from speedo.exchange.codecs import Compression, bytes_of
from speedo.run.prepare import PreparedRun
from speedo.sgd_modes.registry import has_rounds, is_elastic, mode_named, own_options

_SHARES: Final = {
    "own": "; each host reads its own records",
    "offset": "; every worker reads all, each from another place",
    "same": "; every worker reads all, from the first on",
    "once": "; each record is trained exactly once an epoch",
}


def headline(prepared: PreparedRun) -> list[str]:
    """The lines that describe the run before it starts."""
    config, spec, sizes = prepared.config, prepared.spec, prepared.settings.batch_sizes
    share = "+".join(str(size) for size in sizes[:4])
    if len(sizes) > 4:
        share += "+..."
    mode = mode_named(config.mode)
    if mode is not None and mode.rounds:
        backups = own_options(config).get(mode.spare, 0)
        first = sorted(sizes)[: config.workers - backups]
        whole = f"effective batch {sum(first) * spec.iter_size}{' or more' if backups else ''}"
        effective = f"{whole} per merge ({share}"
    else:
        effective = f"batch {sizes[0] * spec.iter_size} per worker ({share}"
    effective += f" records, iter_size {spec.iter_size}" if spec.iter_size > 1 else " records"
    if config.splits_batch and config.workers > 1 and has_rounds(config.mode):
        effective += ", added up" if spec.sums_losses else ", averaged"
    effective += ")"
    epochs = ""
    if prepared.records and config.data_share != "own":  # there the hosts say how many there are
        epochs = f" = {spec.max_iter * spec.batch / prepared.records:.2f} epochs of {prepared.records:,} records"
    epochs += _SHARES.get(config.data_share, "")
    rate = f"learning rate {spec.lr_policy.rate(0):g} ({spec.lr_policy.policy}"
    rate += f", {scaled})" if (scaled := config.scale_of_lr.told()) else ")"
    update = ""
    if config.server_gradient:
        update = f" applied by the {'servers' if config.serves else 'master'}"
    kind = spec.type
    if config.momentum_correction:
        kind = f"SGD with momentum correction{' (EAMSGD)' if is_elastic(config) else ''}"
    if config.staleness_scaling:
        kind += ", deltas divided by their staleness"
    return [
        (
            f"{spec.net_name or spec.path.stem}: mode {config.mode}{config.told_rule}, {config.workers} workers, "
            f"{effective}; {kind}{update}, {rate}, "
            f"momentum {spec.momentum:g}, weight decay {spec.weight_decay:g}"
        ),
        f"{spec.max_iter} iterations of {spec.batch} samples{epochs}; run directory {prepared.run_dir}",
        *(
            []
            if config.engine != "torch"
            else [f"engine torch, device {config.device}, {config.precision}{_in_parts(prepared)}"]
        ),
        *_not_divided(prepared),
        *(prepared.resumed.notes(config.workers) if prepared.resumed else ()),
    ]


def _in_parts(prepared: PreparedRun) -> str:
    config, spec = prepared.config, prepared.spec
    if config.micro_batch is None:
        return ""
    statistics = (
        ", each with BatchNorm's statistics of its own" if "BatchNorm" in spec.layer_types else ""
    )
    return f", batches in parts ({config.micro_batch} records{statistics})"


def _not_divided(prepared: PreparedRun) -> list[str]:
    """Lines for what keeps workers that divide the records from reading each once an epoch."""
    config, sizes = prepared.config, prepared.settings.batch_sizes
    if config.workers == 1 or config.data_share not in ("shard", "own"):
        return []
    lines = [
        f"{layer} is not divided: every worker reads or draws from all its records"
        for layer in undivided(prepared.spec)
    ]
    if len(set(sizes)) > 1:
        less = sum(sizes) // len(sizes) * len(sizes)
        lines.append(
            f"batch {sum(sizes)} is no multiple of {len(sizes)} workers: the shards are read at different speeds, so "
            f"an epoch has some records twice and some not; --batch {less} or {less + len(sizes)} reads each once"
        )
    return lines


def exchange(compression: Compression, facts: CaffeFacts, way: str = "") -> str:
    """The size of the net, and of what is sent after compression; `way` is that of `way_of`."""
    text = f"{facts.nbytes / 1e6:.1f} MB per exchange"
    for what, how in (("payloads", compression.payload), ("centers", compression.center)):
        if how != "none":
            text += f"; {what} {bytes_of(how, facts.parameters) / 1e6:.2g} MB with {how}"
    return f"{facts.parameters:,} parameters in {facts.blobs} blobs, {text}{way}"
