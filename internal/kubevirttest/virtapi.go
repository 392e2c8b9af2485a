package kubevirttest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kickhq/kick/internal/kube"
	"github.com/kickhq/kick/internal/kubevirtapi"
)

const (
	virtNamespace = "kubevirt" // where KubeVirt itself would be
	subresources  = kubevirtapi.Version + "." + kubevirtapi.SubresourceGroup
)

var accessReviews = kube.Resource{Group: "authorization.k8s.io", Version: "v1", Name: "subjectaccessreviews"}

// virtAPI serves the subresources of instances to the API server, and to nobody else.
type virtAPI struct {
	plane *KubeVirt
	front frontProxy
}

// frontProxy is how the API server says who asks, as it publishes it for servers like
// this one.
type frontProxy struct {
	authority                *x509.CertPool
	names                    []string // of its certificate
	users, groups, extrasFor []string // headers
}

// serve starts the server and has the API server know of it.
func (k *KubeVirt) serve(t testing.TB) {
	t.Helper()
	front, err := k.frontProxy()
	if err != nil {
		t.Fatal(err)
	}
	cert, authority := certificate(t, "virt-api."+virtNamespace+".svc")
	l, err := tls.Listen("tcp", net.JoinHostPort(k.cluster.Host.String(), "0"), &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: front.authority, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: &virtAPI{k, front}, ReadHeaderTimeout: 10 * time.Second}
	k.running.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(fmt.Sprintf("serve the subresources: %v", err)) // no test would go on sensibly
		}
	})
	k.running.Go(func() {
		<-k.ctx.Done()
		_ = server.Close() // what is hijacked ends with the machines
	})
	port := l.Addr().(*net.TCPAddr).Port
	k.cluster.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: virt-api, namespace: %[1]s}
spec: {type: ExternalName, externalName: %[2]q, ports: [{port: %[3]d}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: %[7]s}
spec:
  group: %[5]s
  version: %[4]s
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {name: virt-api, namespace: %[1]s, port: %[3]d}
  caBundle: %[6]s
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "kubevirt.io:default"}
rules: [{apiGroups: [%[5]s], resources: [version], verbs: [get, list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubevirt.io:default"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "kubevirt.io:default"}
subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: "system:authenticated"}]
`, virtNamespace, k.cluster.Host, port, kubevirtapi.Version, kubevirtapi.SubresourceGroup, base64.StdEncoding.EncodeToString(authority), subresources))
	k.cluster.Kubectl(t, "wait", "--for=condition=Available", "--timeout=60s", "apiservice/"+subresources)
}

func (k *KubeVirt) frontProxy() (f frontProxy, err error) {
	ctx, cancel := context.WithTimeout(k.ctx, time.Minute)
	defer cancel()
	m, err := kube.Get[corev1.ConfigMap](ctx, k.client, kube.Resource{Version: "v1", Name: "configmaps"}, "kube-system", "extension-apiserver-authentication")
	if err != nil {
		return f, err
	}
	f.authority = x509.NewCertPool()
	if !f.authority.AppendCertsFromPEM([]byte(m.Data["requestheader-client-ca-file"])) {
		return f, errors.New("the API server has no front proxy: it was not started for further APIs")
	}
	for key, into := range map[string]*[]string{
		"requestheader-allowed-names": &f.names, "requestheader-username-headers": &f.users,
		"requestheader-group-headers": &f.groups, "requestheader-extra-headers-prefix": &f.extrasFor,
	} {
		if err := json.Unmarshal([]byte(m.Data[key]), into); err != nil {
			return f, fmt.Errorf("%s: %w", key, err)
		}
	}
	return f, nil
}

// certificate makes an authority and a server's certificate by it.
func certificate(t testing.TB, name string) (tls.Certificate, []byte) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	now := time.Now()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kick test authority"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	must(err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER})
}

func (v *virtAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if len(r.TLS.PeerCertificates) == 0 || len(v.front.names) > 0 && !slices.Contains(v.front.names, r.TLS.PeerCertificates[0].Subject.CommonName) {
		refuse(w, http.StatusUnauthorized, "Unauthorized", "who asks is not the API server")
		return
	}
	prefix := "/apis/" + kubevirtapi.SubresourceGroup + "/" + kubevirtapi.Version
	rest, ours := strings.CutPrefix(r.URL.Path, prefix)
	p := strings.Split(strings.Trim(rest, "/"), "/")
	switch {
	case ours && rest == "":
		answer(w, http.StatusOK, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: kubevirtapi.SubresourceGroup + "/" + kubevirtapi.Version,
			APIResources: []metav1.APIResource{{Name: "virtualmachineinstances/portforward", Namespaced: true}, {Name: "version"}},
		})
	case ours && rest == "/version":
		answer(w, http.StatusOK, map[string]string{"gitVersion": "v1.5.0"})
	case ours && len(p) >= 6 && len(p) <= 7 && p[0] == "namespaces" && p[2] == kubevirtapi.Instances.Name && p[4] == "portforward" && (len(p) == 6 || p[6] == "tcp"):
		if !v.allowed(w, r, p[1], p[3]) {
			return
		}
		v.portForward(w, r, p[1], p[3], p[5])
	default:
		refuse(w, http.StatusNotFound, "NotFound", "there is nothing of that name")
	}
}

// allowed asks the API server whether who asks may.
func (v *virtAPI) allowed(w http.ResponseWriter, r *http.Request, namespace, name string) bool {
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	review := &authorizationv1.SubjectAccessReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SubjectAccessReview"},
		Spec: authorizationv1.SubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Name: name, Verb: "get", Group: kubevirtapi.SubresourceGroup, Version: kubevirtapi.Version, Resource: kubevirtapi.Instances.Name, Subresource: "portforward",
			},
			Extra: map[string]authorizationv1.ExtraValue{},
		},
	}
	for _, h := range v.front.users {
		if u := r.Header.Get(h); u != "" {
			review.Spec.User = u
			break
		}
	}
	for _, h := range v.front.groups {
		review.Spec.Groups = append(review.Spec.Groups, r.Header.Values(h)...)
	}
	for _, prefix := range v.front.extrasFor {
		for h, values := range r.Header {
			if key, ok := strings.CutPrefix(strings.ToLower(h), strings.ToLower(prefix)); ok {
				if key, err := url.PathUnescape(key); err == nil {
					review.Spec.Extra[key] = values
				}
			}
		}
	}
	got, err := kube.Create(ctx, v.plane.client, accessReviews, "", review, false)
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, "InternalError", err.Error())
	case !got.Status.Allowed:
		refuse(w, http.StatusForbidden, "Forbidden", fmt.Sprintf("%s is forbidden: User %q cannot get resource \"virtualmachineinstances/portforward\" in API group %q in the namespace %q", name, review.Spec.User, kubevirtapi.SubresourceGroup, namespace))
	default:
		return true
	}
	return false
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // who asked may be gone
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	answer(w, code, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message})
}

// portForward carries the bytes of a websocket to a port of a machine.
func (v *virtAPI) portForward(w http.ResponseWriter, r *http.Request, namespace, name, port string) {
	m := v.plane.machine(namespace, name)
	switch {
	case m == nil:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, fmt.Sprintf("virtualmachineinstance.kubevirt.io %q not found", name))
		return
	case port != "22":
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "dial tcp: connection refused")
		return
	}
	to, err := m.come()
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	case to == nil:
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict, "VirtualMachineInstance is not running")
		return
	}
	defer to.Close()
	up := websocket.Upgrader{Subprotocols: []string{kubevirtapi.Protocol}, CheckOrigin: func(*http.Request) bool { return true }}
	ws, err := up.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer func() { _ = ws.Close() }() // the other side has seen the end of what came
	cut := m.connect(ws)
	defer cut()
	go func() {
		defer to.Close()
		defer func() { _ = ws.Close() }()
		b := make([]byte, 32<<10)
		for {
			n, err := to.Read(b)
			if n > 0 {
				if err := ws.WriteMessage(websocket.BinaryMessage, b[:n]); err != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for {
		kind, from, err := ws.NextReader()
		if err != nil || kind != websocket.BinaryMessage {
			return
		}
		if _, err := io.Copy(to, from); err != nil {
			return
		}
	}
}
