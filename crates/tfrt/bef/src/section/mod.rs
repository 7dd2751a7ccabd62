//! One file per section, with its reader and its writer.

pub mod attribute_names;
pub mod attribute_types;
pub mod attributes;
pub mod function_index;
pub mod functions;
pub mod kernels;
pub mod location_strings;
pub mod locations;
mod name_table;
pub mod register_types;
pub mod strings;
pub mod types;
