//! What was done about a log's faults.

/// In jobs or lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Repairs {
    /// Left out: fields are missing, or numbers that nothing can be.
    pub unreadable: u64,
    /// Left out: cancelled before it ran, or it ran for no time.
    pub never_ran: u64,
    /// Left out: neither requested nor allocated processors are said.
    pub no_processors: u64,
    /// Left out: it had not ended when the log was written.
    pub unfinished: u64,
    /// Left out: SWF's lines for parts of a job that was interrupted (status 2, 3, 4) beside its own line.
    pub parts: u64,
    /// Left out: steps of jobs, as `sacct` shows them.
    pub steps: u64,
    /// The processors that it requested count, since those that it was given are not said.
    pub requested_for_given: u64,
    /// No time limit is said: the run time counts.
    pub no_request: u64,
    /// Ran for longer than its limit, where this one ends it.
    pub overran: u64,
    /// Submitted before the job of an earlier line: sorted.
    pub out_of_order: u64,
    /// Started before it was submitted: how long it waited is not known.
    pub early_start: u64,
    /// Has the number of another job: both stay.
    pub repeated: u64,
    /// Has other than 18 fields, or more than there are columns: read as far as it goes.
    pub odd_length: u64,
    /// Bytes that are no UTF-8: shown as U+FFFD.
    pub not_utf8: u64,
    /// Known words of the header with values that they cannot have.
    pub header_unreadable: u64,
    /// Words of the header that the standard does not have: kept as they are.
    pub header_unknown: u64,
}

impl Repairs {
    /// Each with its words.
    pub fn list(&self) -> [(&'static str, u64); 16] {
        [
            ("lines that cannot be read, left out", self.unreadable),
            ("jobs that never ran, left out", self.never_ran),
            ("jobs without processors, left out", self.no_processors),
            ("jobs that had not ended, left out", self.unfinished),
            ("parts of interrupted jobs, left out beside the whole", self.parts),
            ("steps of jobs, left out", self.steps),
            ("jobs without given processors: those requested count", self.requested_for_given),
            ("jobs without a time limit: the run time counts", self.no_request),
            ("jobs that ran for longer than their limit: ended there", self.overran),
            ("jobs before their predecessors: sorted", self.out_of_order),
            ("jobs that started before their submission: their wait is unknown", self.early_start),
            ("jobs with the number of another: both stay", self.repeated),
            ("lines with too few or too many fields: read as far as they go", self.odd_length),
            ("lines with bytes that are not UTF-8: read all the same", self.not_utf8),
            ("header lines with impossible values, left out", self.header_unreadable),
            ("header lines that are not in the standard, kept", self.header_unknown),
        ]
    }

    /// Jobs and lines of jobs that are not in the table.
    pub fn left_out(&self) -> u64 {
        self.unreadable + self.never_ran + self.no_processors + self.unfinished + self.parts + self.steps
    }
}
