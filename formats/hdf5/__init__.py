"""HDF5 as h5py writes it: where datasets lie."""
