"""Options of training that change bytes and kernels: codecs of exchanges, how rows are updated."""
