//! File systems that are not this node's alone, by the magic numbers of statfs(2).

/// The kernel's numbers (`linux/magic.h`), and those of file systems outside it. FUSE is one of them because the one who
/// mounts it says who owns what there: a file on it proves nothing.
const REMOTE: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x6573_5546, "FUSE"),
    (0x0BD0_0BD0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x00C3_6400, "Ceph"),
    (0xAAD7_AAEA, "PanFS"),
    (0x2003_0528, "OrangeFS"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x6163_6673, "ACFS"),
    (0x0131_11A8, "IBRIX"),
    (0xBEEF_DEAD, "StorNext"),
    (0x517B, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0xFE53_4D42, "SMB2"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
    (0x564C, "NCP"),
    (0x786F_4256, "vboxsf"),
    (0xBACB_ACBC, "vmhgfs"),
    (0x0187, "autofs"),
];

/// The name of a file system that other nodes, or an ordinary user's process, have a hand in.
pub(crate) fn remote(magic: u32) -> Option<&'static str> {
    REMOTE.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn storage_of_a_node_is_told_from_that_of_others() {
        // ext4, tmpfs, xfs, btrfs, overlayfs, zfs, f2fs.
        for local in [0xEF53, 0x0102_1994, 0x5846_5342, 0x9123_683E, 0x794C_7630, 0x2FC1_2FC1, 0xF2F5_2010] {
            assert_eq!(remote(local), None, "{local:x}");
        }
        assert_eq!(
            [remote(0x6969), remote(0x6573_5546), remote(0x0BD0_0BD0)],
            [Some("NFS"), Some("FUSE"), Some("Lustre")]
        );
    }
}
