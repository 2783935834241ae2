"""A simulator of faults: the live service, its clients and its workers in one process, with virtual time, from one seed."""
