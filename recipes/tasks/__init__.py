"""Small tasks that need no data: they are made here, with demonstrations for the warm-up of a tiny model."""
