/// The version of the reports' schema. It is incremented when a field is renamed or removed.
pub const REPORT_VERSION: u32 = 1;
