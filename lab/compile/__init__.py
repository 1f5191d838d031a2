"""From a scenario to what will be done: matrix, procedures, XML. Pure; policy-free in the XML."""
