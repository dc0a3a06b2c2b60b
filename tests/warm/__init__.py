"""A process in which torch, transformers, DeepSpeed and vLLM are imported, and from which tests fork what they run.

Those imports are most of the time that a short run takes. The process is a fork server (`rlhf.cluster.fork_server`),
which the first test that needs it starts, and which ends with the session. Ray's workers come from it too.
"""
