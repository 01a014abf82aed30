"""HOW to split training: plans, rules, schedules, costs, search."""
