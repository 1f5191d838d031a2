"""Pure: reaches neither processes nor files nor clocks."""
