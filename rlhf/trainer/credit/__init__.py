"""From the rewards of a batch to the advantage of every token, on the controller. Pure, and numpy only."""
