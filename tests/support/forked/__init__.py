"""Processes of the product as forks of one that has imported all that they need: the product, Ray, Caffe and PyTorch.

A start of Python, with these imports, costs a second of processor time, and a run has six of them. `server.py` forks
instead; `commands.py` starts commands so, and `interpreter.py` is a program that stands for Python wherever the product
starts one: for a node's processes, Ray's actors, a trial of the nets. All else is real: Ray, Redis, addresses, signals.
"""
