"""Processes of the product as forks of one that has imported all that they need: the product, Ray, Caffe and PyTorch.

Most of the processor time of a run's start goes to the imports of its six or more processes. `server.py` forks
instead; `commands.py` starts commands so, and `interpreter.py` is a program that stands for Python wherever the product
starts one: for a node's processes, Ray's actors, a trial of the nets. All else is real: Ray, Redis, addresses, signals.
"""
