/* Access control lists: who may do what by them. As root, with other ids for a while. Working directory in the pool. */
#include "check.h"
#include <grp.h>
#include <sys/xattr.h>

enum { OWNER = 1, USER = 2, OWNING_GROUP = 4, GROUP = 8, MASK = 16, OTHERS = 32 };
struct entry { unsigned short tag, rights; unsigned id; };
struct list { unsigned version; struct entry entries[6]; };

static const char access_list[] = "system.posix_acl_access", default_list[] = "system.posix_acl_default";

static void set(const char *path, const char *name, unsigned user, unsigned group, unsigned mask)
{
    struct list list = {2, {{OWNER, 6, -1}, {USER, user, 1111}, {OWNING_GROUP, 0, -1}, {GROUP, group, 2222}, {MASK, mask, -1}, {OTHERS, 0, -1}}};
    CHECK(setxattr(path, name, &list, sizeof list, 0) == 0);
}

static void as(unsigned uid, unsigned group)
{
    gid_t groups[] = {group};
    CHECK(setgroups(1, groups) == 0 && setegid(9) == 0 && seteuid(uid) == 0);
}

static void as_root(void)
{
    CHECK(seteuid(0) == 0 && setegid(0) == 0);
}

static int opens(const char *path, int flags)
{
    int fd = open(path, flags);
    CHECK(fd >= 0 || errno == EACCES);
    return fd >= 0 && close(fd) == 0;
}

int main(void)
{
    struct stat st;
    if (geteuid() != 0) {
        fprintf(stderr, "SKIPPED: not root\n");
        return 0;
    }
    CHECK(chmod(".", 0755) == 0);
    put("f", "text");
    set("f", access_list, 6, 4, 7);
    CHECK(stat("f", &st) == 0 && (st.st_mode & 07777) == 0670 && (st.st_mode & ~07777u) == S_IFREG);
    as(1111, 7);
    CHECK(opens("f", O_RDWR) && eaccess("f", R_OK | W_OK) == 0);
    FAILS(eaccess("f", X_OK), EACCES);
    FAILS(removexattr("f", access_list), EPERM);
    FAILS(chmod("f", 0777), EPERM);
    as_root(), as(3333, 2222);
    CHECK(opens("f", O_RDONLY) && !opens("f", O_WRONLY));
    as_root(), as(3333, 7);
    CHECK(!opens("f", O_RDONLY));
    as_root();
    /* The mask follows chmod. */
    CHECK(chmod("f", 0640) == 0);
    as(1111, 7);
    CHECK(opens("f", O_RDONLY) && !opens("f", O_WRONLY));
    as_root();
    /* A directory that only a list lets through, and what is made in it. */
    CHECK(mkdir("d", 0700) == 0);
    put("d/old", "old");
    CHECK(chmod("d/old", 0644) == 0);
    as(1111, 7);
    CHECK(!opens("d/old", O_RDONLY));
    as_root();
    set("d", access_list, 7, 0, 7), set("d", default_list, 6, 4, 7);
    as(1111, 7);
    umask(077);
    CHECK(opens("d/old", O_RDONLY));
    put("d/own", "own");
    CHECK(mkdir("d/sub", 0777) == 0 && getxattr("d/sub", default_list, 0, 0) == sizeof(struct list));
    CHECK(getxattr("d/own", access_list, 0, 0) == sizeof(struct list) && getxattr("d/own", default_list, 0, 0) == -1);
    as_root();
    put("d/roots", "root's");
    CHECK(stat("d/roots", &st) == 0 && (st.st_mode & 0777) == 0640);
    as(1111, 7);
    CHECK(opens("d/roots", O_RDONLY) && !opens("d/roots", O_WRONLY));
    as_root();
    CHECK(removexattr("d", access_list) == 0 && removexattr("d", access_list) == 0 && chmod("d", 0700) == 0);
    as(1111, 7);
    CHECK(!opens("d/roots", O_RDONLY));
    as_root();
    return 0;
}
