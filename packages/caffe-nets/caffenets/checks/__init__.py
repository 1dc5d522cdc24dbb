"""What is wrong with a net before anything of it is computed: layers, files, records."""
