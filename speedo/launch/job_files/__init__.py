"""Ready files for Slurm, Kubernetes, KubeRay and systemd."""
