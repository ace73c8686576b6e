/* Where the system keeps the certificates that it trusts. */
#ifndef QN_BASE_CERTIFICATES_H
#define QN_BASE_CERTIFICATES_H

/* qn_system_certificates - the path of a file with the certificates that the system trusts; NULL if there is none, or
 * if the system gives them by other means. For a libcurl that was not built for this system alone. */
const char *qn_system_certificates(void);

#endif
