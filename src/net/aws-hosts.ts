/** Hosts of Amazon in a region, whose form the caller has checked. The regions of China have a domain of their own. */
export function snsHostOf(region: string): string {
  return `sns.${region}.${domainOf(region)}`;
}

function domainOf(region: string): string {
  return region.startsWith('cn-') ? 'amazonaws.com.cn' : 'amazonaws.com';
}

export function sesSmtpHostOf(region: string): string {
  return `email-smtp.${region}.${domainOf(region)}`;
}
