"""What each idea buys on this machine, as ratios within one run."""
