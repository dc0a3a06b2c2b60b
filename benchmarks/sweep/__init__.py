"""A sweep by ASHA against a full grid."""
