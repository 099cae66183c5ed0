//! See the module documentation.
