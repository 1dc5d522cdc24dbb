"""Runs every check of the doctor that applies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from speedo.engines.make import prepare_to_read
from speedo.study.doctor.base import Finding, NodeRequest
from speedo.study.doctor.checks import findings
from speedo.study.doctor.cluster import examine_master, free_ports, own_redis, token
from speedo.study.doctor.engines import engines, memory_of, pycaffe, torch
from speedo.study.doctor.solver import choice_of, examine_solver


def examine(request: NodeRequest) -> list[Finding]:
    """All findings, in the order in which a run would meet the problems. Changes nothing on the node.

    The master is asked while Caffe is tried, each in a child process: both take seconds.
    """
    with ThreadPoolExecutor(3) as pool:
        trying = None if request.own else (pool.submit(pycaffe), pool.submit(torch))
        found_token, secret = token(request)
        asking = pool.submit(examine_master, request, secret)
        installed = [*findings(request, "installed")]
        answers, facts = asking.result()
        about_engines, about_solver, net = list[Finding](), list[Finding](), None
        if trying is None or "script" in facts:  # scripts need no engine
            request = replace(request, own=True)
        else:
            choice = choice_of(request, facts)
            caffe, about_torch = trying
            about_engines = engines(
                caffe.result(), about_torch.result(), choice.engine, choice.device
            )
            if about_engines[-1].level == "ok":  # it checks the layers, and builds the net
                prepare_to_read(choice.engine)
                about_solver, net = examine_solver(request, facts, choice)
                if net is not None:
                    net = replace(net, devices=memory_of(about_torch.result(), choice))
    return [
        *installed,
        *about_engines,
        *found_token,
        *answers,
        *free_ports(request),
        *own_redis(request),
        *about_solver,
        *findings(replace(request, net=net), "resources"),
    ]
