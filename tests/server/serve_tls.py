"""TLS of quern serve: which versions, key exchanges and ciphers are spoken, with certificates of RSA and of elliptic curves.

    serve_tls.py MODEL

QN_BIN names the folder of quern.
"""
import argparse
import os
import ssl
import subprocess
import tempfile

from serve_process import LIMIT, Server, ask

SPOKEN = {
    "rsa": ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-CHACHA20-POLY1305"],
    "ec": ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"],
}
# Key exchange by RSA, by finite fields; block ciphers in CBC; those with SHA-1.
NOT_SPOKEN = {
    "rsa": ["AES256-GCM-SHA384", "AES128-GCM-SHA256", "AES128-SHA256", "AES128-SHA", "AES256-SHA", "AES128-CCM", "ECDHE-RSA-AES128-SHA256",
            "ECDHE-RSA-AES256-SHA384", "ECDHE-RSA-AES128-SHA", "ECDHE-RSA-AES256-SHA", "DHE-RSA-AES128-GCM-SHA256", "DHE-RSA-AES128-SHA256",
            "CAMELLIA128-SHA"],
    "ec": ["ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES128-CCM8"],
}


def connects(port, *options):
    """Whether openssl completes a handshake; and with what."""
    found = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-brief", *options], input=b"", capture_output=True, timeout=LIMIT)
    text = found.stderr + found.stdout
    return found.returncode == 0 and b"CONNECTION ESTABLISHED" in text, text


def is_refused(text):
    """By the server: openssl itself sent its hello."""
    return b"alert" in text or b"unexpected eof" in text or b"errno=104" in text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    args = parser.parse_args()
    known = subprocess.run(["openssl", "ciphers", "ALL:@SECLEVEL=0"], capture_output=True, check=True).stdout.decode().strip().split(":")
    with tempfile.TemporaryDirectory() as folder:
        for kind, new_key in (("rsa", ["rsa:2048"]), ("ec", ["ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])):
            certificate, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
            subprocess.run(["openssl", "req", "-x509", "-newkey", *new_key, "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost",
                            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
            context = ssl.create_default_context(cafile=certificate)
            with Server(args.model, "-t", "1", "-c", "512", "--tls-cert", certificate, "--tls-key", key, context=context) as server:
                for cipher in SPOKEN[kind]:
                    done, text = connects(server.port, "-tls1_2", "-cipher", cipher)
                    assert done, (cipher, text)
                for cipher in NOT_SPOKEN[kind]:
                    if cipher in known:
                        done, text = connects(server.port, "-tls1_2", "-cipher", cipher + ":@SECLEVEL=0")
                        assert not done and is_refused(text), (cipher, text)
                for cipher in ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"):
                    done, text = connects(server.port, "-tls1_3", "-ciphersuites", cipher)
                    assert done, (cipher, text)
                for version in ("-tls1_1", "-tls1"):
                    done, text = connects(server.port, version, "-cipher", "ALL:@SECLEVEL=0")
                    assert not done and is_refused(text), (version, text)
                done, text = connects(server.port, "-tls1_2", "-sigalgs", "RSA+SHA1:ECDSA+SHA1", "-cipher", "ALL:@SECLEVEL=0")
                assert not done and is_refused(text), text
                assert ask(server.port, "GET", "/v1/models", context=context)[0] == 200
    print("forward secrecy and authenticated ciphers alone")


if __name__ == "__main__":
    main()
