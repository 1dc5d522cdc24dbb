"""Ready files for schedulers and service managers: Slurm, Kubernetes, KubeRay, systemd."""
