"""A process in which torch, transformers, DeepSpeed, vLLM and Ray are imported, and from which tests fork what they run.

Those imports are most of the time that a short run takes. `server` is that process, `client` starts it when it is first
asked for anything and ends it with the session, and `ray_worker` lets Ray's workers come from it too.
"""
