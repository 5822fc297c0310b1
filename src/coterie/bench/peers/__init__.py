"""Scripts for other simulators, run by interpreters that have those installed; they import nothing of ours."""
