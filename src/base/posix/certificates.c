/* Systems differ in where the bundle of certificates is. */
#include "base/certificates.h"

#include "base/file.h"

#include <stddef.h>

const char *qn_system_certificates(void)
{
    static const char *const places[] = {
        "/etc/ssl/certs/ca-certificates.crt",                /* Debian, Ubuntu, Arch, Gentoo, Alpine, NixOS */
        "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* Fedora, RHEL 7 and later */
        "/etc/pki/tls/certs/ca-bundle.crt",                  /* RHEL 6 */
        "/etc/ssl/ca-bundle.pem",                            /* openSUSE */
        "/etc/ssl/cert.pem",                                 /* macOS, BSDs */
        "/usr/share/ssl/certs/ca-bundle.crt",
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (qn_file_is_readable(places[i]))
            return places[i];
    return NULL;
}
