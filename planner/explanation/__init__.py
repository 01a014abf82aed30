"""Why a plan costs what it costs, what would change that, and how two plans differ; everything priced by `cost.pricing`."""
