"""Which runs stand in each table and figure, beside which published values."""
