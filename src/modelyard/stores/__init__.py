"""Where records are kept: `memory` for tests and short lives, `sqlite` for one file that outlives the process."""
