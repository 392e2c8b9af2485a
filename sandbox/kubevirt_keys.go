package sandbox

import (
	"encoding/json"
	"math"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
)

// KubeVirtKeys are the ways in which a machine learns whom it lets in, who it is and
// how long it may live: files on a disk of their own, which the image's start reads, or
// cloud-init, for images that have that.
var KubeVirtKeys = []string{"secret", cloudInitKeys}

const cloudInitKeys = "cloud-init"

// cloudConfig says to cloud-init what the files of a Secret say to other images. It is
// JSON, which is YAML too.
func cloudConfig(user string, keys machineKeyPairs, files map[string][]byte, lifetime time.Duration) ([]byte, error) {
	host, err := ssh.NewPublicKey(keys.host.Public())
	if err != nil {
		return nil, err
	}
	sshd := strings.Join([]string{
		"AllowUsers " + user, "AuthenticationMethods publickey", "PasswordAuthentication no", "PermitRootLogin no", "PermitTTY no",
		"AllowAgentForwarding no", "AllowTcpForwarding remote", "AllowStreamLocalForwarding remote", "",
	}, "\n")
	b, err := json.MarshalIndent(map[string]any{
		"users": []any{map[string]any{
			// No password is that, and the account is not locked, in which sshd without
			// PAM lets nobody.
			"name": user, "shell": "/bin/sh", "lock_passwd": false, "hashed_passwd": "*", "ssh_authorized_keys": []string{strings.TrimSpace(string(files[fileAuthorized]))},
		}},
		"disable_root": true, "ssh_pwauth": false, "ssh_deletekeys": true,
		"ssh_keys": map[string]string{"ed25519_private": string(files[fileHostKey]), "ed25519_public": strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host)))},
		// The first file that says something of a setting is what sshd goes by.
		"write_files": []any{map[string]string{"path": "/etc/ssh/sshd_config.d/00-kick.conf", "content": sshd}},
		"power_state": map[string]any{"mode": "poweroff", "delay": int64(math.Ceil(lifetime.Minutes()))},
	}, "", " ")
	if err != nil {
		return nil, err
	}
	return append([]byte("#cloud-config\n"), append(b, '\n')...), nil
}
