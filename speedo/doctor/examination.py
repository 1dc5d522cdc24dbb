"""Runs every check of the doctor that applies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from speedo.doctor.base import Finding, Request
from speedo.doctor.caffe import pycaffe
from speedo.doctor.cluster import examine_master, free_ports, own_redis, token
from speedo.doctor.cores import cores, running_workers
from speedo.doctor.limits import limits
from speedo.doctor.machine import python, ray, redis, temporary
from speedo.doctor.resources import disk, exchange, memory
from speedo.doctor.solver import examine_solver


def examine(request: Request) -> list[Finding]:
    """All findings, in the order in which a run would meet the problems. Changes nothing on the node.

    The master is asked while Caffe is tried, each in a child process: both take seconds.
    """
    with ThreadPoolExecutor(2) as pool:
        trying = pool.submit(pycaffe)
        found_token, secret = token(request)
        asking = pool.submit(examine_master, request, secret)
        installed = [python(), ray(), redis(request)]
        room = [cores(request), *running_workers(), *temporary(request), *limits(request)]
        caffe = trying.result()
        answers, facts = asking.result()
    findings = [
        *installed,
        caffe,
        *found_token,
        *answers,
        *free_ports(request),
        *own_redis(request),
    ]
    net = None
    if caffe.level != "fail":  # whatever reads a prototxt needs Caffe's own definitions
        about_solver, net = examine_solver(request, facts)
        findings += about_solver
    return [
        *findings,
        *room,
        *memory(request, net),
        *exchange(request, net),
        *disk(request, net),
    ]
