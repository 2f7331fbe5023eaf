"""Which run is driven, what each silo is told, and what happens when storage fails."""
