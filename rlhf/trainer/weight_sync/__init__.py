"""The learner's side of a weight sync: the transaction, and the proof that engines have the weights."""
