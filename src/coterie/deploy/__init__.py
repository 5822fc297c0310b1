"""The same federation on real machines."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # Flower reads these when it is imported
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
