/* The certificates that this system trusts: Debian's bundle where it is, else a file that can be read, or none. */
#include "helper_assert.h"

#include "base/certificates.h"
#include "base/file.h"

#define DEBIAN "/etc/ssl/certs/ca-certificates.crt"

TEST(the_bundle_of_this_system)
{
    const char *path = qn_system_certificates();
    if (qn_file_is_readable(DEBIAN))
        assert_string_equal(path, DEBIAN);
    else
        assert_true(!path || qn_file_is_readable(path));
}
