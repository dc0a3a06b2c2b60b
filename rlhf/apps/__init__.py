"""Programs around a run. The core never imports them."""
