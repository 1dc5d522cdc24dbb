"""`speedo compare`: sequential Caffe and every mode, run after run, into one report."""
