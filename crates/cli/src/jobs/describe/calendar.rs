//! Days since 1970 as dates.

/// Years begin in March, so that the day of a leap year is their last one; 400 of them have so many days.
const DAYS_400: i64 = 146_097;
/// From March of the year 0 to 1970.
const DAYS_TO_1970: i64 = 719_468;
pub const DAY_S: i64 = 86_400;

/// Year, month, day.
pub fn date(days: i64) -> (i64, u32, u32) {
    let days = days + DAYS_TO_1970;
    let within = days.rem_euclid(DAYS_400);
    let year = (within - within / 1460 + within / 36_524 - within / (DAYS_400 - 1)) / 365;
    let day = within - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (shown, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let day = day - (153 * month + 2) / 5 + 1;
    (year + days.div_euclid(DAYS_400) * 400 + later, shown as u32, day as u32)
}

/// Days since 1970 of the first of a month.
pub fn first_of(year: i64, month: u32) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    days + (153 * i64::from(month) + 2) / 5 - DAYS_TO_1970
}

/// `2026-11-23`.
pub fn shown(seconds: i64) -> String {
    let (year, month, day) = date(seconds.div_euclid(DAY_S));
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, wanted) in
            [(0, "1970-01-01"), (11_016, "2000-02-29"), (20_780, "2026-11-23"), (-1, "1969-12-31")]
        {
            assert_eq!(shown(days * DAY_S), wanted);
        }
        let mut before = date(-1000);
        for days in -999..60_000 {
            let (year, month, day) = date(days);
            let next = match before {
                (of, 12, 31) => (of + 1, 1, 1),
                (of, last, _) if day == 1 => (of, last + 1, 1),
                (of, same, yesterday) => (of, same, yesterday + 1),
            };
            assert_eq!((year, month, day), next);
            assert_eq!(first_of(year, month), days + 1 - i64::from(day));
            before = next;
        }
    }
}
