//! Version negotiation: a link version stays supported for as long as pods that speak it can be alive.
//!
//! A new message kind or field needs no new version where the other side can do without: unknown ones are ignored, and
//! what a gateway must be able to do is said in the assignment (uploads), or at each
//! connection when a worker may do without it from one turn to the next (outputs of turns). A new version is for what cannot be ignored.

/// The version this build prefers.
pub const VERSION: u32 = 1;
/// Every version this build speaks, newest first.
pub const SUPPORTED_VERSIONS: &[u32] = &[1];

/// The newest version both sides speak, `None` when there is none.
pub fn choose_version(offered: &[u32]) -> Option<u32> {
    SUPPORTED_VERSIONS.iter().copied().find(|version| offered.contains(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C7: an upgrade and a rollback meet live pods. A version leaves this list only when no release that spoke it is
    /// supported any more.
    #[test]
    fn c7_every_version_that_live_pods_may_speak_is_still_spoken() {
        const RELEASED: &[u32] = &[1];
        for version in RELEASED {
            assert_eq!(choose_version(&[*version]), Some(*version), "workers of version {version} are cut off");
        }
    }

    #[test]
    fn the_newest_common_version_is_chosen() {
        assert_eq!(choose_version(&[7, 1]), Some(1));
        assert_eq!(choose_version(&[]), None);
        assert_eq!(choose_version(&[99]), None);
    }
}
